// Redirects calls of a shared library to a function that it imports by name.
//
// The dynamic linker keeps a table for each library, with one slot per imported function that holds
// its address; a redirection changes the slot. Used for thread-local settings (Note [Settings at
// the call]), and to place the results of kernels (Note [Results in place]).
#pragma once

namespace at::openreg {

class SymbolInterposer {
 public:
  // The table of the library whose image contains `address`.
  explicit SymbolInterposer(const void* address);

  // Makes the library call `target` instead of the function `symbol`, a mangled name, from now on.
  // Calls from other libraries are not affected. Returns false if the library does not import the
  // function, or if the table cannot be written.
  // Threads: other threads may call the function meanwhile; their calls reach either function.
  bool redirect(const char* symbol, void* target) const;

 private:
  const void* image_;  // where the library is loaded
};

}  // namespace at::openreg
