/* Types and macros that every header of the runtime shares. */
#ifndef OPENREG_TYPES_H
#define OPENREG_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define OPENREG_EXTERN_C_BEGIN extern "C" {
#define OPENREG_EXTERN_C_END }
#else
#define OPENREG_EXTERN_C_BEGIN
#define OPENREG_EXTERN_C_END
#endif

#define OPENREG_API __attribute__((visibility("default")))

/* Marks functions whose result must be looked at: all that return an orError_t. */
#define OPENREG_CHECKED __attribute__((warn_unused_result))

/* A member that C++ programs may leave out when they initialize a struct; C programs may anyway. */
#ifdef __cplusplus
#define OPENREG_OPTIONAL = nullptr
#else
#define OPENREG_OPTIONAL
#endif

/* A queue of work on one device; see stream.h. */
typedef struct orStream* orStream_t;

/* A marker in a stream; see event.h. */
typedef struct orEvent* orEvent_t;

#endif
