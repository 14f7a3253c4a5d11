// The places of a program at which something happens that a dry run makes up.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace torch_openreg {

// Where one kind of thing happens. Guarded by the GIL.
class ProgramPlaces {
 public:
  // Counts the place of the calling thread, and warns the first time, with a UserWarning of the
  // given text. Takes the GIL; a thread without Python is not counted.
  // Errors: python_error if a filter turns the warning into an exception.
  void note(const char* kernel, const char* what);

  // Tuples of an operator, a place ("file:line") and a count. GIL: held.
  pybind11::list all() const;

 private:
  std::map<std::pair<std::string, std::string>, int64_t> counts_;  // by operator and place
};

// Files whose path starts with one of these are not of the program. GIL: held.
void setForeignFiles(const pybind11::tuple& prefixes);

}  // namespace torch_openreg
