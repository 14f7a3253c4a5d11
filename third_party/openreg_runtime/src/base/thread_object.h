// Objects that belong to a thread.
#pragma once

#include <utility>

namespace openreg {

namespace detail {

template <typename T>
thread_local constinit T* this_threads_object =
    nullptr;  // has no destructor: valid to the very end

}  // namespace detail

// This thread's object of a type, null if it has none. Does not allocate.
template <typename T>
T* find_thread_object() {
  return detail::this_threads_object<T>;
}

// This thread's object of a type: made at its first use, destroyed when the thread ends. A use
// after that, by another object's destructor, makes a new one that is leaked. So every function
// of the library may be called at any point of a thread's life.
template <typename T>
T& thread_object() {
  T*& object = detail::this_threads_object<T>;
  struct Owner {
    ~Owner() { delete std::exchange(detail::this_threads_object<T>, nullptr); }
  };
  if (object == nullptr) {
    object = new T;
    static thread_local Owner owner;
    static_cast<void>(owner);
  }
  return *object;
}

}  // namespace openreg
