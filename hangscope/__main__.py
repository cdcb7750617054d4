"""``python -m hangscope`` is the ``hangscope`` command."""

from hangscope.cli import main

if __name__ == "__main__":
    main()
