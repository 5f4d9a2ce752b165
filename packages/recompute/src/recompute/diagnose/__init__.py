"""Why a run went out of memory: logs, memory snapshots and ledgers in, a verdict and actions out."""
