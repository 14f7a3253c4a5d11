// Kineto's interface for plug-ins.
//
// torch's wheels bring Kineto's headers and, inside libtorch_cpu, its code. They are compiled
// with USE_KINETO, which the headers of torch do not say, and bring fmt's headers but not its
// library.
#pragma once

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#ifndef USE_KINETO
#define USE_KINETO
#endif

#include <kineto/libkineto.h>
#include <kineto/output_base.h>
