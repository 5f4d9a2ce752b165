"""recompute: activation recompute for Megatron Core and Megatron Bridge, checked, predicted, planned."""

from __future__ import annotations

__version__ = "0.1.0"
