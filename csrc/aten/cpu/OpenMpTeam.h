// The OpenMP team of a thread: the threads that share its parallel regions.
//
// Note [Idle teams]
// Between two parallel regions, the threads of a team spin for a short time before they sleep. But
// libgomp counts the threads of all teams of the process: if there are more than processors, they
// sleep at once, and each region has to wake them. Fused kernels of 150 us then took 210. A program
// that initializes parameters on the CPU and trains on a device has two teams, that of the main
// thread and that of a stream's worker.
//
// So a team that is not used is released; OpenMP starts a new one at the next region. A worker
// releases its team after its stream has been idle for a second (orSetIdleFunction). A thread that
// launches kernels no longer computes itself, and releases its team too; because it may alternate
// between both, it does so at most once a second. More often would cost more than it saves: the
// system takes about ten milliseconds to find a processor for each new thread.
//
// The threads of a new team inherit the floating-point mode of the thread that starts it. So a team
// is not released in a mode other than the default, and a team that may have been started in
// another mode is released at the first launch in the default mode.
#pragma once

#include <c10/util/FunctionRef.h>

namespace at::openreg {

// Sets how many threads the kernels of the calling thread use. at::set_num_threads also changes the
// process's number, and clears caches of all threads.
void setThreadCountOfThisThread(int count);

// Calls a function on `count` threads of the calling thread's team, and on the calling thread;
// starts missing threads. Without OpenMP, calls it on the calling thread only.
// Errors: rethrows the function's exception; one of them, if several threads threw.
void runOnTeamOfThisThread(int count, c10::function_ref<void()> function);

// Releases the calling thread's team. Costs almost nothing if it has none. Does nothing inside a
// parallel region, or with an OpenMP library other than libgomp.
void releaseTeamOfThisThread();

}  // namespace at::openreg
