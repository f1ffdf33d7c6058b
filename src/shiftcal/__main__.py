"""Run the command line: python -m shiftcal."""

from shiftcal.cli import main

if __name__ == "__main__":
    main()
