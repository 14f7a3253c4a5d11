// What libtorch_openreg.so exports.
#pragma once

// Marks what libtorch_openreg.so offers to the bindings and to extension authors; all else is
// hidden.
#define OPENREG_EXPORT __attribute__((visibility("default")))
