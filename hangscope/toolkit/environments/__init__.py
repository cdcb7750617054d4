"""Variables and interfaces: what to set, what is set, what is wrong.

**In**: a mapping of environment variables, and this host's network interfaces. **Out**: what
`hangscope.configure_environment` and ``hangscope env`` set, keep and complain about.

* `variables` lists the variables that control how a job waits, dumps and connects, with their
  meaning and the versions that read them; `rules` are pure functions that find problems;
* `interfaces` finds fast networks; `environment` is the function for users.

**Rules.** What the user has set is kept, and said.

**Imported by** the other parts of `toolkit` and the command line.
"""
