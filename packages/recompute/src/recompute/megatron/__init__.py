"""The edge that meets torch and Megatron Core, inside the user's own environment."""
