"""What one rank computes and saves, per layer and operation."""
