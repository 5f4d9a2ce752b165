"""Where credentials lie on a machine, as patterns over folded lower-case text.

Shared by the checks on sending, on reading, and on hidden comments.
"""

from __future__ import annotations

from typing import Final

from mdr.audit.rx import Rx, any_of

HOME: Final = (
    rb"(?:~\w{0,32}|\$\{?home\}?|\$\{?userprofile\}?|\$env:(?:userprofile|home)|%userprofile%|%appdata%"
    rb"|/root|/home/[^\s/]+|/users/[^\s/]+|c:[\\/]users[\\/][^\s\\/]+|path\.home\(\)|os\.homedir\(\))"
)
SLASH: Final = rb"(?:[\\/]+\.?[\\/]*|[\"'] *[,/+] *[\"'])"
"""One or more separators, ``/./``, or two strings joined by a path function."""
DOT_FOLDERS: Final = (
    rb"\.(?:ssh|aws|gnupg|azure|netrc|npmrc|pypirc|git-credentials|pgpass|my\.cnf|vault-token|boto|s3cfg"
    rb"|docker/config\.json|kube/config|config/gcloud|config/gh/hosts\.yml|config/rclone"
    rb"|config/op|cargo/credentials|gem/credentials|terraform\.d/credentials|huggingface/token"
    rb"|cache/huggingface/token|claude/\.credentials|codex/auth\.json|clawdbot/\.env|openclaw/\.env"
    rb"|password-store|electrum|bitcoin|ethereum/keystore|config/solana/id\.json"
    rb"|mozilla/firefox|config/google-chrome)"
)
NAMED: Final = any_of(
    rb"\bid_(?:rsa|ed25519|ecdsa|dsa)\b",
    rb"/etc/(?:shadow|gshadow|master\.passwd)\b",
    rb"\.aws[\\/]+credentials",
    rb"\.ssh[\\/]+(?:id_|\*|authorized_keys|config\b)",
    rb"\.docker[\\/]+config\.json",
    rb"\bapplication_default_credentials\.json",
    rb"\blogin data\b",
    rb"\bcookies\.sqlite\b",
    rb"\bkey4\.db\b",
    rb"\blogins\.json\b",
    rb"\bwallet\.dat\b",
    rb"\bkeychain(?:-db)?\b",
    rb"/proc/(?:self|[0-9]+|\*|\$\$)/environ\b",
    rb"\bntds\.dit\b",
)
DOTENV: Final = rb"(?:^|[\s/\"'`(=@<\\])\.env(?:\.(?:local|production|prod|staging|development))?(?:[\s\"'`),;:|&>]|\.(?:\s|$)|$)"
"""A ``.env`` file by name; ``.env.example`` and ``.envrc`` are not one."""
STRONG: Final = any_of(HOME + SLASH + DOT_FOLDERS, NAMED)
"""Files that hold credentials and nothing else a skill needs."""
STORE: Final = any_of(STRONG, DOTENV)
OWNER: Final = rb"(?:the )?(?:users?'?s?|your|their)"
QUANTITY: Final = rb"(?:all(?: of)?(?: the| your| their)?|any|every|local|stored|saved)"
KIND: Final = rb"(?:(?:own|local|stored|saved|secret|private|aws|cloud|github|openai|anthropic|browser|existing|current)\s+){0,2}"
TOKEN: Final = rb"(?:access|auth|authentication|api|bearer|session|oauth|refresh|github|gitlab|slack|npm|login|secret) token"
SECRET: Final = (
    rb"(?:api[ -]?key|credential|secret|password|passphrase|private key|ssh key|secret key|"
    + TOKEN
    + rb"|cookie)"
)
"""What is secret by name. Bare ``token`` is not: language models and currencies have those too."""
OWNED_SECRETS: Final = (
    rb"(?:\b"
    + OWNER
    + rb"\s+"
    + KIND
    + SECRET
    + rb"s?\b|\b"
    + QUANTITY
    + rb"\s+"
    + KIND
    + rb"(?:session |browser |login )?"
    + SECRET
    + rb"s\b)"
)
"""Somebody's secret, or several; ``a stored credential`` in passing is neither."""
LOCAL_SECRETS: Final = any_of(
    STORE,
    rb"\benvironment variables?\b",
    rb"\benv(?:ironment)? vars\b",
    rb"\b(?:seed|recovery|mnemonic) phrases?",
    rb"\bprivate keys?\b",
    rb"\bssh keys?\b",
    rb"\bbrowser (?:cookies|passwords)\b",
    rb"\bsaved passwords\b",
    rb"\bwallet (?:keys?|files?)\b",
    OWNED_SECRETS,
)
PUBLIC: Final = Rx(
    rb"\.env\.(?:example|sample|template|dist|test)|\.env[\w-]|\.pub\b|known_hosts|authorized_keys|\.ssh/config\b|\bpublic keys?\b"
)
"""Near a store, these say that no secret is meant."""
