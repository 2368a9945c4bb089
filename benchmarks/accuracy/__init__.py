"""accuracy: what each codec does to the accuracy of a small classifier. See __main__.py."""
