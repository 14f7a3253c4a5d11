// Export macro of libtorch_openreg.so.
#pragma once

// Marks symbols for the bindings and for authors of extensions; all others are hidden.
#define OPENREG_EXPORT __attribute__((visibility("default")))
