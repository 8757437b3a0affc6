"""`python -m pidlease`: the command line."""

from proxy.__main__ import main

if __name__ == "__main__":
    main()
