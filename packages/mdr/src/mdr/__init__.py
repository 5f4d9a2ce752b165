"""mdr: a registry of agent-read markdown. Bytes are named by SHA-256, versions come from git history."""

__version__ = "0.1.0"
