"""The hot path in C++, compiled once for the torch at hand; without it, Python does the same.

**In**: the sources beside these modules, a compiler, and the headers of the installed torch.
**Out**: a hook for the operators of ``torch.distributed`` that costs about a microsecond a call and
writes the same records as `hangscope.recording.hook`.

* `build` compiles, on request (``hangscope compile``): twenty seconds of a compiler in a job would
  hurt it; `names` says in a file's name which sources, Python and torch it fits; `load` finds the
  one that fits, in a folder that nobody else may write to; `trial` proves in a process of its own
  that it works here.
* `hook` puts it in place; `callbacks` is what C++ asks Python: whatever is new or rare, so that how
  an operation is recorded is written down once; `constants` writes a header with what both must
  agree on.

**Rules.** A test compares the records of both, row by row. Whatever goes wrong falls back to Python
with one line.

**Imported by** `recording`, the command line and the doctor; imports `ring`.
"""
