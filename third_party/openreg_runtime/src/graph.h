// Graphs: where a submission goes while its stream is capturing.
#pragma once

#include <openreg/graph.h>

#include "command.h"

namespace openreg {

class Stream;

// Takes the commands of a capturing stream.
class CommandSink {
 public:
  virtual ~CommandSink() = default;

  // Takes a command in place of the stream's queue. On success the closure has been moved out of
  // the submission; on error it has not, and the error is the submission's.
  // Threads: those that submit, several at a time.
  virtual orError_t take(Stream& stream, const Submission& submission) = 0;
};

// Sends what is submitted to the stream from now on to the sink; null ends that.
// Owns: the sink stays the caller's and must outlive every submission it may get.
void set_command_sink(Stream& stream, CommandSink* sink);

// Fails with orErrorStreamCaptureUnsupported if the stream is capturing. For functions that wait
// for the stream or ask how far it has got.
orError_t check_not_capturing(const Stream& stream, const char* function);

}  // namespace openreg
