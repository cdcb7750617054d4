"""One file per kind of line: what it tells, and where it is put down."""
