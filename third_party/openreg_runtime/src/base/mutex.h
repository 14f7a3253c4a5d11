// Mutexes with annotations that clang checks: python tools/lint.py thread-safety.
//
// A member states which mutex guards it, a function which mutex its caller must hold. clang follows
// every path and rejects an access without the lock; other compilers ignore the annotations.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define OPENREG_THREAD_ANNOTATION(annotation) __attribute__((annotation))
#else
#define OPENREG_THREAD_ANNOTATION(annotation)
#endif

// For a variable: it is read and written only with the mutex held.
#define OPENREG_GUARDED_BY(mutex) OPENREG_THREAD_ANNOTATION(guarded_by(mutex))
// For a function: the caller must hold the mutex, or must not hold it.
#define OPENREG_REQUIRES(...) OPENREG_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define OPENREG_EXCLUDES(...) OPENREG_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
// For a function: it locks or unlocks the mutex.
#define OPENREG_ACQUIRE(...) OPENREG_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define OPENREG_TRY_ACQUIRE(...) OPENREG_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define OPENREG_RELEASE(...) OPENREG_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
// For a function that clang cannot follow; a comment states what replaces the check.
#define OPENREG_UNCHECKED_LOCKING OPENREG_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace openreg {

class OPENREG_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() OPENREG_ACQUIRE() { mutex_.lock(); }
  bool try_lock() OPENREG_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() OPENREG_RELEASE() { mutex_.unlock(); }

 private:
  friend class Lock;
  std::mutex mutex_;
};

// Holds a mutex until the end of a block.
class OPENREG_THREAD_ANNOTATION(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) OPENREG_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  // Takes over a mutex that the calling thread has locked.
  Lock(Mutex& mutex, std::adopt_lock_t adopt) OPENREG_REQUIRES(mutex)
      : lock_(mutex.mutex_, adopt) {}
  ~Lock() OPENREG_RELEASE() {}

  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() OPENREG_ACQUIRE() { lock_.lock(); }
  void unlock() OPENREG_RELEASE() { lock_.unlock(); }

  // Releases the mutex while it waits, and holds it again when it returns.
  void wait(std::condition_variable& changed) { changed.wait(lock_); }

  // The same with a time limit; may end early. Returns false if the time has passed.
  bool wait_for(std::condition_variable& changed, std::chrono::milliseconds duration) {
    return changed.wait_for(lock_, duration) == std::cv_status::no_timeout;
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace openreg
