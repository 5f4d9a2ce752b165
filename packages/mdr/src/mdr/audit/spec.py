"""Strict conformance with the SKILL.md specification of agentskills.io. Never part of the grade."""
