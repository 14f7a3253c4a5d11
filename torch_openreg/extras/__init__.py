"""Python parts of extras: what the package can be built without."""
