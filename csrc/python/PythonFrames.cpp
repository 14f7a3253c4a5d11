#include "csrc/python/PythonFrames.h"

#include <c10/util/SmallVector.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch_openreg {
namespace {

namespace py = pybind11;

struct PythonFrame {
  PyCodeObject* code;
  int instruction;

  bool operator==(const PythonFrame&) const = default;
};

using PythonFrameList = c10::SmallVector<PythonFrame, 32>;

struct PythonFrames final : c10::GatheredContext {
  explicit PythonFrames(const PythonFrameList& list) : frames(list.begin(), list.end()) {
    for (const PythonFrame& frame : frames) {
      Py_INCREF(frame.code);
    }
  }

  std::vector<PythonFrame> frames;
};

struct PythonFramesHash {
  using is_transparent = void;

  size_t operator()(const PythonFrameList& frames) const { return hash(frames); }
  size_t operator()(const std::shared_ptr<PythonFrames>& one) const { return hash(one->frames); }

  template <typename Frames>
  static size_t hash(const Frames& frames) {
    size_t value = frames.size();
    for (const PythonFrame& frame : frames) {
      const auto address = reinterpret_cast<uintptr_t>(frame.code);
      value = c10::hash_combine(value, address ^ static_cast<size_t>(frame.instruction));
    }
    return value;
  }
};

struct PythonFramesEqual {
  using is_transparent = void;

  bool operator()(const PythonFrameList& list, const std::shared_ptr<PythonFrames>& one) const {
    return std::equal(list.begin(), list.end(), one->frames.begin(), one->frames.end());
  }
  bool operator()(const std::shared_ptr<PythonFrames>& one,
                  const std::shared_ptr<PythonFrames>& other) const {
    return one->frames == other->frames;
  }
};

// All stacks in use, and some that are not any more. The GIL guards it: only here are references
// to Python's objects dropped, whoever was the last to use a stack.
class KnownFrames {
 public:
  std::shared_ptr<PythonFrames> find(const PythonFrameList& frames) {
    const auto found = known_.find(frames);
    if (found != known_.end()) {
      return *found;
    }
    if (known_.size() >= limit_) {
      dropUnused();
    }
    return *known_.insert(std::make_shared<PythonFrames>(frames)).first;
  }

 private:
  void dropUnused() {
    std::vector<PyCodeObject*> dropped;
    std::erase_if(known_, [&](const std::shared_ptr<PythonFrames>& one) {
      if (one.use_count() > 1) {
        return false;
      }
      for (const PythonFrame& frame : one->frames) {
        dropped.push_back(frame.code);
      }
      return true;
    });
    limit_ = std::max(kMinLimit, 2 * known_.size());
    for (PyCodeObject* code : dropped) {
      Py_DECREF(code);
    }
  }

  static constexpr size_t kMinLimit = 1024;
  std::unordered_set<std::shared_ptr<PythonFrames>, PythonFramesHash, PythonFramesEqual> known_;
  size_t limit_ = kMinLimit;
};

// Leaked, as the interpreter may be gone before its objects.
KnownFrames& knownFrames() {
  static auto* instance = new KnownFrames;
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

std::shared_ptr<c10::GatheredContext> gatherPythonFrames() {
  if (Py_IsInitialized() == 0 || isInterpreterEnding() ||
      PyGILState_GetThisThreadState() == nullptr) {
    return nullptr;
  }
  const py::gil_scoped_acquire acquired;
  // The code objects live at least as long as their frames are on the stack.
  PythonFrameList frames;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    frames.push_back({code, PyFrame_GetLasti(frame)});
    Py_DECREF(code);
    Py_DECREF(std::exchange(frame, PyFrame_GetBack(frame)));
  }
  return knownFrames().find(frames);
}

py::list describePythonFrames(const std::shared_ptr<c10::GatheredContext>& stack) {
  py::list result;
  if (const auto* known = dynamic_cast<const PythonFrames*>(stack.get())) {
    for (const PythonFrame& frame : known->frames) {
      py::dict described;
      described["filename"] = py::handle(frame.code->co_filename);
      described["name"] = py::handle(frame.code->co_name);
      described["line"] = PyCode_Addr2Line(frame.code, frame.instruction);
      result.append(std::move(described));
    }
  }
  return result;
}

}  // namespace torch_openreg
