"""The HTTP interface: the documents of the contract, problems, writes with tokens."""
