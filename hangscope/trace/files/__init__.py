"""Identifies files by name and content, and reads untrusted ones safely.

**In**: a path, or the bytes of a file. **Out**: what kind of file it is, its text or plain values,
or one line that says why not.

* `sniff` decides by content: names lie; `file_names` is what a name says of rank and attempt;
* `regular_files` opens without blocking on FIFOs and devices; `compression` reads what is intact of
  a compressed file; `unpickle` knows no class or function; `truncated_dumps` recovers what precedes
  the entries; `log_exports`, `debug_pages` and `utf16` unwrap logs and dumps that other tools have
  exported; `source_text` decodes source files.

**Rules.** Everything has a limit of size. No codec, import or entity that the file names itself.

**Imported by** nearly everything that reads; imports `ring` alone.
"""
