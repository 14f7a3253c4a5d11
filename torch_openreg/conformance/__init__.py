"""A conformance kit: the tests of openreg for any device of torch.

``pytest --pyargs torch_openreg.conformance --device=NAME``. Importing this package imports no
tests; the test modules get the device from :mod:`torch_openreg.conformance.target` when they are
imported, so it has to be chosen first. The plug-in does that, from the command line.

With another device than openreg, ``OPENREG_DEVICE_TYPE=none`` keeps torch_openreg from registering
its own; the plug-in sets it.
"""
