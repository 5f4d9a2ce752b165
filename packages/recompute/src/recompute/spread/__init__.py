"""Parts of a search in other processes, of this machine or of a cluster; answers do not depend on it."""
