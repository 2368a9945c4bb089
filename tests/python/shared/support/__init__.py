"""What tests of several folders use. Only this package is in its folder, which pytest puts on sys.path."""
