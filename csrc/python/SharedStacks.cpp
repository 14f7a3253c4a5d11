#include "csrc/python/SharedStacks.h"

#include <c10/util/SmallVector.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "csrc/python/Bindings.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using c10::openreg::DumpedFrames;
using c10::openreg::Stack;

// A position in Python code: of the current line, or of a caller.
struct CodePosition {
  PyCodeObject* code;
  int instruction;

  bool operator==(const CodePosition&) const = default;
};

// The key of a stack. Borrows the code objects, which live as long as their frames are on the
// stack.
struct StackKey {
  c10::SmallVector<CodePosition, 32> frames;
  std::shared_ptr<const c10::GatheredContext> backward;  // the frames that follow
};

// Note [Shared stacks]
// A program launches its work from a limited number of lines, so stacks with the same frames are
// one object, which is found in a table. The table owns it as well, so the last reference to a
// stack is dropped by the table, with the GIL held: only then can the frames' code be released. It
// drops stacks without other owners whenever its size has doubled since the last time.
struct SharedFrames final : c10::GatheredContext {
  explicit SharedFrames(const StackKey& key)
      : frames(key.frames.begin(), key.frames.end()), backward(key.backward) {
    for (const CodePosition& frame : frames) {
      Py_INCREF(frame.code);
    }
  }

  const std::vector<CodePosition> frames;  // owns a reference to each code object
  const std::shared_ptr<const c10::GatheredContext> backward;
};

using SharedFramesPtr = std::shared_ptr<SharedFrames>;

struct Hash {
  using is_transparent = void;

  size_t operator()(const StackKey& key) const { return hash(key); }
  size_t operator()(const SharedFramesPtr& one) const { return hash(*one); }

  template <typename Key>
  static size_t hash(const Key& key) {
    size_t value = reinterpret_cast<uintptr_t>(key.backward.get());
    for (const CodePosition& frame : key.frames) {
      const auto address = reinterpret_cast<uintptr_t>(frame.code);
      value = c10::hash_combine(value, address ^ static_cast<size_t>(frame.instruction));
    }
    return value;
  }
};

struct Equal {
  using is_transparent = void;

  bool operator()(const SharedFramesPtr& a, const SharedFramesPtr& b) const { return same(*a, *b); }
  bool operator()(const StackKey& a, const SharedFramesPtr& b) const { return same(a, *b); }

  template <typename Key>
  static bool same(const Key& a, const SharedFrames& b) {
    return a.backward == b.backward &&
           std::equal(a.frames.begin(), a.frames.end(), b.frames.begin(), b.frames.end());
  }
};

// Guarded by the GIL. Creating frame objects and releasing code may run arbitrary Python code,
// which may gather stacks itself; so neither happens while the table is being accessed.
class StackTable {
 public:
  SharedFramesPtr find(const StackKey& key) {
    const auto found = stacks_.find(key);
    if (found != stacks_.end()) {
      return *found;
    }
    if (stacks_.size() > 2 * size_after_sweep_ + kMinSweep) {
      sweep();
    }
    return *stacks_.insert(std::make_shared<SharedFrames>(key)).first;
  }

  void sweep() {
    // A stack that only the table owns cannot get other owners. Those that it refers to are dropped
    // in the next round.
    std::vector<PyCodeObject*> released;
    size_t before = 0;
    do {
      before = stacks_.size();
      std::erase_if(stacks_, [&](const SharedFramesPtr& one) {
        if (one.use_count() > 1) {
          return false;
        }
        for (const CodePosition& frame : one->frames) {
          released.push_back(frame.code);
        }
        return true;
      });
    } while (stacks_.size() < before);
    size_after_sweep_ = stacks_.size();
    for (PyCodeObject* code : released) {
      Py_DECREF(code);
    }
  }

  SharedStackCounts counts() const {
    SharedStackCounts counts;
    for (const SharedFramesPtr& one : stacks_) {
      ++counts.stacks;
      counts.bytes += sizeof(SharedFrames) + one->frames.capacity() * sizeof(CodePosition);
    }
    return counts;
  }

 private:
  static constexpr size_t kMinSweep = 1024;

  std::unordered_set<SharedFramesPtr, Hash, Equal> stacks_;
  size_t size_after_sweep_ = 0;
};

// Leaked, because stacks have owners that live until the process ends.
StackTable& table() {
  static auto* const instance = new StackTable;
  return *instance;
}

bool isInterpreterEnding() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

Stack gatherSharedStack(const Stack& backward) {
  // A thread without Python code has no frames, and need not wait for the GIL.
  if (Py_IsInitialized() == 0 || isInterpreterEnding() ||
      PyGILState_GetThisThreadState() == nullptr) {
    return backward;
  }
  const py::gil_scoped_acquire acquired;
  StackKey key{{}, backward.here};
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    key.frames.push_back({code, PyFrame_GetLasti(frame)});
    Py_DECREF(code);
    Py_DECREF(std::exchange(frame, PyFrame_GetBack(frame)));
  }
  return {table().find(key)};
}

py::list describeFrames(const Stack& stack) {
  py::list frames;
  const c10::GatheredContext* context = stack.here.get();
  while (const auto* one = dynamic_cast<const SharedFrames*>(context)) {
    for (const CodePosition& frame : one->frames) {
      py::dict described;
      described["filename"] = py::handle(frame.code->co_filename);
      described["name"] = py::handle(frame.code->co_name);
      described["line"] = PyCode_Addr2Line(frame.code, frame.instruction);
      frames.append(std::move(described));
    }
    context = one->backward.get();
  }
  if (const auto* dumped = dynamic_cast<const DumpedFrames*>(context)) {
    py::dict described;
    described["dump"] = dumped->text;
    frames.append(std::move(described));
  }
  return frames;
}

SharedStackCounts sharedStackCounts() { return table().counts(); }

void dropUnusedStacks() { table().sweep(); }

namespace {

void bindStacks(py::module_& m) {
  c10::openreg::setStackGatherer(&gatherSharedStack);
  m.def("_begin_backward", &c10::openreg::beginBackward);
  m.def("_end_backward", &c10::openreg::endBackward);
}

const Bindings kStackBindings(&bindStacks);

}  // namespace

}  // namespace torch_openreg
