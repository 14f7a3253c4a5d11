/* The header as a C99 program sees it: it compiles, and every call has C linkage. */
#include <openreg/openreg.h>
#include <stdio.h>
#include <string.h>

static orError_t add_one(void* closure) {
  int** target = (int**)closure;
  ++**target;
  return orSuccess;
}

static int fail(const char* call, orError_t error) {
  fprintf(stderr, "%s: %s: %s\n", call, orGetErrorName(error), orGetLastErrorMessage());
  return 1;
}

#define CHECK_OK(call)                                 \
  do {                                                 \
    orError_t error = (call);                          \
    if (error != orSuccess) return fail(#call, error); \
  } while (0)

int main(void) {
  static const orKernel kernel = {"add_one", add_one, NULL, NULL, NULL, NULL};
  int value = 41;
  int* target = &value;
  orStream_t stream = NULL;
  char text[16] = "device memory";
  char copy[16] = "";
  void* memory = NULL;

  CHECK_OK(orStreamCreate(&stream));
  CHECK_OK(orLaunchKernel(&kernel, &target, sizeof target, stream, 0));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orStreamDestroy(stream));
  if (value != 42) return 1;

  CHECK_OK(orMalloc(&memory, sizeof text));
  CHECK_OK(orMemcpy(memory, text, sizeof text, orMemcpyHostToDevice));
  CHECK_OK(orMemcpy(copy, memory, sizeof text, orMemcpyDeviceToHost));
  CHECK_OK(orFree(memory));
  return strcmp(text, copy) == 0 ? 0 : 1;
}
