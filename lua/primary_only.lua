-- Answers nothing on a replica. Prepended to the scripts that only read, behind primary.

ensure_primary()

