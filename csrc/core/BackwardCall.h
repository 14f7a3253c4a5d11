// The moment before a backward pass. torch tells it to a device by asking for its context.
#pragma once

namespace c10::openreg {

// Called on the thread that is about to run a backward pass.
using BackwardListener = void (*)();

// There is one, which is installed while the library is loaded.
void setBackwardListener(BackwardListener listener);

// Calls it, if there is one.
void announceBackward();

}  // namespace c10::openreg
