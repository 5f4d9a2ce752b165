"""Where bytes come from: git repositories, fetched hardened and read from the object database."""
