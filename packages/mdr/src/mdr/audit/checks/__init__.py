"""One module per family of checks; :mod:`mdr.audit.rulesets` lists their rows."""
