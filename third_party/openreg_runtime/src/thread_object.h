// Objects that belong to a thread.
#pragma once

namespace openreg {

// This thread's object of a type: made at its first use, destroyed when the thread ends. A use
// after that, by another object's destructor, makes a new one that is leaked. So every function
// of the library may be called at any point of a thread's life.
template <typename T>
T& thread_object() {
  static thread_local T* object = nullptr;  // has no destructor: valid to the very end
  struct Owner {
    ~Owner() {
      delete object;
      object = nullptr;
    }
  };
  if (object == nullptr) {
    object = new T;
    static thread_local Owner owner;
    static_cast<void>(owner);
  }
  return *object;
}

}  // namespace openreg
