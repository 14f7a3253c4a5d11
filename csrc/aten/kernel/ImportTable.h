// The table through which a shared library calls functions that it imports by name.
//
// It is the dynamic linker's: per imported function, one slot that holds its address. See
// Note [Settings at the call] for what we need it for; it has no other user.
#pragma once

namespace at::openreg {

class ImportTable {
 public:
  // That of the library which has `address` in its image.
  explicit ImportTable(const void* address);

  // Makes the library call `target` instead of the function `symbol`, a mangled name, from now on.
  // Other libraries go on calling the function. Returns false if the library does not import it, or
  // if the table cannot be written.
  // Threads: any may call the function meanwhile; it gets there by the old way or the new one.
  bool redirect(const char* symbol, void* target) const;

 private:
  const void* image_;  // where the library is loaded
};

}  // namespace at::openreg
