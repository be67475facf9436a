"""`python -m rankrise`: the same as the command `rankrise`."""

from rankrise.commands import main

if __name__ == "__main__":
    main()
