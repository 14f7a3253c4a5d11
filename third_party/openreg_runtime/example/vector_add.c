/* Adds two vectors on a device, and times the kernel with events.
 *
 * A kernel is a function and its arguments, the closure. The host passes device addresses; the
 * kernel adds the kernel offset to reach the bytes. */
#include <openreg/openreg.h>
#include <stdio.h>
#include <stdlib.h>

enum { count = 1 << 20 };

typedef struct Add {
  const float* a;
  const float* b;
  float* sum;
  ptrdiff_t kernel_offset;
} Add;

static const float* input(const float* device_address, ptrdiff_t offset) {
  return (const float*)((const char*)device_address + offset);
}

static orError_t run_add(void* closure) {
  const Add* add = (const Add*)closure;
  const float* a = input(add->a, add->kernel_offset);
  const float* b = input(add->b, add->kernel_offset);
  float* sum = (float*)((char*)add->sum + add->kernel_offset);
  for (int i = 0; i < count; ++i) sum[i] = a[i] + b[i];
  return orSuccess;
}

static void check(orError_t error) {
  if (error == orSuccess) return;
  fprintf(stderr, "%s: %s\n", orGetErrorName(error), orGetLastErrorMessage());
  exit(1);
}

static void* device_malloc(size_t size) {
  void* pointer = NULL;
  check(orMalloc(&pointer, size));
  return pointer;
}

int main(void) {
  static const orKernel add_kernel = {"add", run_add, NULL, NULL, NULL, NULL};
  static float host[count];
  const size_t size = sizeof(host);
  orStream_t stream = NULL;
  orEvent_t start = NULL;
  orEvent_t end = NULL;
  float elapsed_ms = 0;
  Add add;

  check(orStreamCreate(&stream));
  check(orEventCreate(&start));
  check(orEventCreate(&end));
  add.a = device_malloc(size);
  add.b = device_malloc(size);
  add.sum = device_malloc(size);
  check(orGetKernelOffset(&add.kernel_offset));

  for (int i = 0; i < count; ++i) host[i] = (float)i;
  check(orMemcpyAsync((void*)add.a, host, size, orMemcpyHostToDevice, stream));
  check(orMemcpyAsync((void*)add.b, host, size, orMemcpyHostToDevice, stream));

  check(orEventRecord(start, stream));
  check(orLaunchKernel(&add_kernel, &add, sizeof(add), stream, 0));
  check(orEventRecord(end, stream));

  check(orMemcpyAsync(host, add.sum, size, orMemcpyDeviceToHost, stream));
  check(orStreamSynchronize(stream));
  check(orEventElapsedTime(&elapsed_ms, start, end));

  for (int i = 0; i < count; ++i) {
    if (host[i] != 2.0f * (float)i) {
      fprintf(stderr, "element %d is %f\n", i, (double)host[i]);
      return 1;
    }
  }
  printf("added %d numbers in %.3f ms\n", count, (double)elapsed_ms);

  check(orFree((void*)add.a));
  check(orFree((void*)add.b));
  check(orFree(add.sum));
  check(orEventDestroy(start));
  check(orEventDestroy(end));
  check(orStreamDestroy(stream));
  return 0;
}
