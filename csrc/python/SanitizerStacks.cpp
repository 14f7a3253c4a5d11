#include "csrc/python/SanitizerStacks.h"

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch_openreg {
namespace {

namespace py = pybind11;
using c10::openreg::Stack;

// A line of Python that is being run, or of a caller: its code and instruction.
struct CodePosition {
  PyCodeObject* code;
  int instruction;

  bool operator==(const CodePosition&) const = default;
};

// Note [Shared stacks]
// A program launches its work from a limited number of lines, so stacks with the same frames are
// one object, which a table finds by them. The table owns it as well, so the last one to let go of
// a stack is the table, which has the GIL: the frames' code can then be released. It lets go of
// what nobody else has, when it has doubled since it last did.
struct SharedFrames final : c10::GatheredContext {
  std::vector<CodePosition> frames;  // owns a reference to each code
  Stack backward;                    // what follows
  size_t hash = 0;

  ~SharedFrames() override {
    for (const CodePosition& frame : frames) {
      Py_DECREF(frame.code);
    }
  }

  SharedFrames() = default;
  SharedFrames(const SharedFrames&) = delete;
  SharedFrames& operator=(const SharedFrames&) = delete;
};

using SharedFramesPtr = std::shared_ptr<SharedFrames>;

struct Hash {
  size_t operator()(const SharedFramesPtr& one) const { return one->hash; }
};

struct Equal {
  bool operator()(const SharedFramesPtr& a, const SharedFramesPtr& b) const {
    return a->frames == b->frames && a->backward.here == b->backward.here;
  }
};

struct Table {
  std::unordered_set<SharedFramesPtr, Hash, Equal> stacks;
  size_t size_after_sweep = 0;
  // What is looked for, so that a stack that is known costs no allocation.
  SharedFramesPtr sought = std::make_shared<SharedFrames>();
};

constexpr size_t kMinSweep = 1024;

// The GIL guards it. Leaked, as stacks are kept by what lives until the process ends.
Table& table() {
  static auto* const instance = new Table;
  return *instance;
}

size_t combine(size_t hash, size_t value) {
  return hash ^ (value + size_t(0x9e3779b97f4a7c15) + (hash << 6) + (hash >> 2));
}

// Takes the frames of the running thread.
void takeFrames(SharedFrames& into) {
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    const CodePosition position{PyFrame_GetCode(frame), PyFrame_GetLasti(frame)};
    into.frames.push_back(position);
    into.hash = combine(into.hash, reinterpret_cast<size_t>(position.code));
    into.hash = combine(into.hash, static_cast<size_t>(position.instruction));
    PyFrameObject* const caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
}

void sweep(Table& stacks) {
  // Nobody else can come by a stack that only the table has. Those behind it go in the next round.
  size_t before = 0;
  do {
    before = stacks.stacks.size();
    std::erase_if(stacks.stacks, [](const SharedFramesPtr& one) { return one.use_count() == 1; });
  } while (stacks.stacks.size() < before);
  stacks.size_after_sweep = stacks.stacks.size();
}

}  // namespace

Stack gatherSharedStack(const Stack& backward) {
  // A thread that runs no Python has no frames, and need not wait for the GIL.
  if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) {
    return backward;
  }
  const py::gil_scoped_acquire acquired;
  Table& all = table();
  SharedFrames& sought = *all.sought;
  takeFrames(sought);
  sought.backward = backward;
  sought.hash = combine(sought.hash, reinterpret_cast<size_t>(backward.here.get()));
  const auto found = all.stacks.find(all.sought);
  if (found != all.stacks.end()) {
    const Stack known{*found};
    for (const CodePosition& frame : sought.frames) {
      Py_DECREF(frame.code);  // the known stack has it, too
    }
    sought.frames.clear();
    sought.backward = {};
    sought.hash = 0;
    return known;
  }
  if (all.stacks.size() > 2 * all.size_after_sweep + kMinSweep) {
    sweep(all);
  }
  sought.frames.shrink_to_fit();
  const SharedFramesPtr added = std::exchange(all.sought, std::make_shared<SharedFrames>());
  all.stacks.insert(added);
  return {added};
}

py::list describeFrames(const Stack& stack) {
  py::list frames;
  for (const auto* one = static_cast<const SharedFrames*>(stack.here.get()); one != nullptr;
       one = static_cast<const SharedFrames*>(one->backward.here.get())) {
    for (const CodePosition& frame : one->frames) {
      py::dict described;
      described["filename"] = py::handle(frame.code->co_filename);
      described["name"] = py::handle(frame.code->co_name);
      described["line"] = PyCode_Addr2Line(frame.code, frame.instruction);
      frames.append(std::move(described));
    }
  }
  return frames;
}

SharedStackCounts sharedStackCounts() {
  SharedStackCounts counts;
  for (const SharedFramesPtr& one : table().stacks) {
    ++counts.stacks;
    counts.bytes += sizeof(SharedFrames) + one->frames.capacity() * sizeof(CodePosition);
  }
  return counts;
}

void dropUnusedStacks() { sweep(table()); }

}  // namespace torch_openreg
