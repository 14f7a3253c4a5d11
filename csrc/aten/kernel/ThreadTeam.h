// The threads with which OpenMP helps a thread that computes: its team.
//
// Note [Idle teams]
// Between two parallel regions, the threads of a team look for the next one for a moment before
// they sleep. libgomp counts the threads of all teams of the process, though: if there are more
// than processors, they sleep at once, and each region has to wake them. Fused kernels of 150 us
// took 210 then, and a program that makes its parameters on the CPU and trains on a device has two
// teams, the main thread's and that of a stream's worker.
//
// So a team that is not used is given up; OpenMP starts another one with the next region. A worker
// gives its up when its stream has been idle for a second (orSetIdleFunction). A thread that
// launches kernels computes on other threads now, and gives its own up; as it may compute on its
// own in turns, at most once a second. More often would cost more than it saves: a system takes
// some ten milliseconds to find a processor for each new thread.
//
// The threads of a new team have the floating-point mode of the thread that starts it. So no team
// is given up in another mode than the default, and one that may have been started in another is
// given up with the first launch in the default mode.
#pragma once

#include <c10/util/FunctionRef.h>

namespace at::openreg {

// Sets how many threads the calling thread's kernels use. at::set_num_threads sets the process's
// number, too, and empties caches of all threads.
void setThreadCountOfThisThread(int count);

// Calls a function on as many threads of the calling thread's team, and on the calling thread;
// starts those that are missing. Without OpenMP, calls it on the calling thread alone.
// Errors: throws what the function has thrown; one of the exceptions, if several threads had one.
void runOnTeamOfThisThread(int count, c10::function_ref<void()> function);

// Gives up the calling thread's team. Costs nothing noticeable if it has none. Does nothing inside
// a parallel region, and with an OpenMP other than libgomp.
void releaseTeamOfThisThread();

}  // namespace at::openreg
