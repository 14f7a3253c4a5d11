// Kineto's interface for plug-ins.
//
// torch's wheels contain Kineto's headers and, inside libtorch_cpu, its code. torch was compiled
// with USE_KINETO, but its headers do not define it, and the wheels contain fmt's headers but not
// its library.
#pragma once

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#ifndef USE_KINETO
#define USE_KINETO
#endif

#include <kineto/libkineto.h>
#include <kineto/output_base.h>
