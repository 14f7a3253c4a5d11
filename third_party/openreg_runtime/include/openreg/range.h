/* Ranges: names that a program gives to parts of its own time.
 *
 * A range opened with orRangePush belongs to the calling thread and nests; one opened with
 * orRangeStart has an id and may be ended by another thread. Ranges and marks leave records in a
 * trace (trace.h) if tracing was on from their beginning to their end. While tracing is off, they
 * cost next to nothing.
 *
 * Ranges need no device. They work in a forked child, too.
 */
#ifndef OPENREG_RANGE_H
#define OPENREG_RANGE_H

#include <openreg/error.h>

OPENREG_EXTERN_C_BEGIN

/* Opens a range on this thread. Stores how many ranges contain it; null is allowed.
 * Owns: the name is copied. */
OPENREG_API orError_t orRangePush(const char* name, int* depth) OPENREG_CHECKED;

/* Closes the innermost range of this thread. Stores how many ranges contained it; null is
 * allowed.
 * Errors: orErrorInvalidValue if none is open. */
OPENREG_API orError_t orRangePop(int* depth) OPENREG_CHECKED;

/* Opens a range that does not nest and stores its id, from 1.
 * Owns: the name is copied. */
OPENREG_API orError_t orRangeStart(const char* name, uint64_t* id) OPENREG_CHECKED;

/* Closes it. The record is that of the thread that opened it.
 * Errors: orErrorInvalidValue if no such range is open. */
OPENREG_API orError_t orRangeEnd(uint64_t id) OPENREG_CHECKED;

/* Marks a point in time.
 * Owns: the name is copied. */
OPENREG_API orError_t orMark(const char* name) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
