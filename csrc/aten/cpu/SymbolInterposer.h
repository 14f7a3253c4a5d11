// Redirects calls of libtorch_cpu to a function that it imports by name.
//
// The dynamic linker keeps a table for each library, with one slot per imported function that holds
// its address; a redirection changes the slot. Used for thread-local settings (Note [Settings at
// the call]), and to place the results of kernels (Note [Results in place]).
#pragma once

namespace at::openreg {

// Makes libtorch_cpu call `target` instead of the function `symbol`, a mangled name, from now on.
// Calls from other libraries are not affected. Returns false if libtorch_cpu does not import the
// function, or if the table cannot be written.
// Threads: other threads may call the function meanwhile; their calls reach either function.
bool redirectTorch(const char* symbol, void* target);

}  // namespace at::openreg
