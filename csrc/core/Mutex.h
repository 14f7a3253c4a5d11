// Mutexes with annotations that clang checks: python tools/lint.py thread-safety.
//
// As mutex.h of the runtime, a private header that the backend cannot include: annotations state
// which mutex guards a variable, and which mutex the caller of a function must hold. clang rejects
// an access without it.
#pragma once

#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define OPENREG_THREAD_ANNOTATION(annotation) __attribute__((annotation))
#else
#define OPENREG_THREAD_ANNOTATION(annotation)
#endif

// For a variable: it is read and written only with the mutex held.
#define OPENREG_GUARDED_BY(mutex) OPENREG_THREAD_ANNOTATION(guarded_by(mutex))
// For a mutex: a thread that locks both locks this one first.
#define OPENREG_ACQUIRED_BEFORE(...) OPENREG_THREAD_ANNOTATION(acquired_before(__VA_ARGS__))
// For a function: the caller must hold the mutex, or must not hold it.
#define OPENREG_REQUIRES(...) OPENREG_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define OPENREG_EXCLUDES(...) OPENREG_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
// For a function: it locks or unlocks the mutex.
#define OPENREG_ACQUIRE(...) OPENREG_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define OPENREG_ACQUIRE_SHARED(...) \
  OPENREG_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define OPENREG_RELEASE(...) OPENREG_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace c10::openreg {

class OPENREG_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() OPENREG_ACQUIRE() { mutex_.lock(); }
  void unlock() OPENREG_RELEASE() { mutex_.unlock(); }

 private:
  friend class Lock;
  std::mutex mutex_;
};

// Holds a mutex until the end of a block.
class OPENREG_THREAD_ANNOTATION(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) OPENREG_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~Lock() OPENREG_RELEASE() {}

  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // These release the mutex while they wait, and hold it again when they return.
  void wait(std::condition_variable& changed) { changed.wait(lock_); }
  template <typename Time>
  std::cv_status waitUntil(std::condition_variable& changed, const Time& deadline) {
    return changed.wait_until(lock_, deadline);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

// A mutex that several threads can hold for reading, or one thread for writing.
class OPENREG_THREAD_ANNOTATION(capability("mutex")) SharedMutex {
 private:
  friend class SharedLock;
  friend class ExclusiveLock;
  std::shared_mutex mutex_;
};

// Holds it for reading until the end of a block.
class OPENREG_THREAD_ANNOTATION(scoped_lockable) SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) OPENREG_ACQUIRE_SHARED(mutex) : lock_(mutex.mutex_) {}
  ~SharedLock() OPENREG_RELEASE() {}

  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

// Holds it for writing until the end of a block.
class OPENREG_THREAD_ANNOTATION(scoped_lockable) ExclusiveLock {
 public:
  explicit ExclusiveLock(SharedMutex& mutex) OPENREG_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~ExclusiveLock() OPENREG_RELEASE() {}

  ExclusiveLock(const ExclusiveLock&) = delete;
  ExclusiveLock& operator=(const ExclusiveLock&) = delete;

 private:
  std::unique_lock<std::shared_mutex> lock_;
};

}  // namespace c10::openreg
