// Facts about single operators, as tables.
//
// The build makes a header of each fact in csrc/aten/facts/operators.yaml that C++ reads:
//
//   #include "build/generated/facts/OnlyWrites.h"
//   facts::kOnlyWrites.contains("aten::fill_.Scalar")
//
// Tables are constants: any thread may read them. A lookup is a binary search of names; code that
// runs in every call keeps the result, once per operator.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace c10::openreg {

// A bit for each dtype.
using DtypeSet = uint64_t;

constexpr DtypeSet setOf(ScalarType dtype) { return DtypeSet(1) << static_cast<int>(dtype); }

constexpr DtypeSet setOf(std::initializer_list<ScalarType> dtypes) {
  DtypeSet set = 0;
  for (const ScalarType dtype : dtypes) {
    set |= setOf(dtype);
  }
  return set;
}

namespace facts {

// What the name of an entry stands for.
enum class NameKind : uint8_t {
  Overload,  // "add.out" for that overload, "add" for the default one
  Operator,  // "add" for all its overloads
  Family,    // "add" for all overloads of add and add_
};

// "add", for the family, of "aten::add_.Tensor". Empty for an operator outside of ATen.
constexpr std::string_view nameIn(NameKind kind, std::string_view operator_name) {
  constexpr std::string_view kNamespace = "aten::";
  if (!operator_name.starts_with(kNamespace)) {
    return {};
  }
  operator_name.remove_prefix(kNamespace.size());
  if (kind != NameKind::Overload) {
    operator_name = operator_name.substr(0, operator_name.find('.'));
  }
  if (kind == NameKind::Family && operator_name.ends_with('_')) {
    operator_name.remove_suffix(1);
  }
  return operator_name;
}

struct NoValue {};

template <typename Value>
struct Entry {
  std::string_view name;  // ends with a null character
  Value value = {};
};

// One of several choices, which the fact's table lists, and the name of an argument if the choice
// takes one.
template <typename Choices>
struct Choice {
  Choices choice;
  std::string_view argument = {};
};

// Names of arguments; unused places are empty.
struct Arguments {
  static constexpr size_t kMaxCount = 4;

  std::array<std::string_view, kMaxCount> names;

  constexpr bool contain(std::string_view name) const {
    return std::ranges::find(names, name) != names.end();
  }
};

// A statement on an argument that holds if a boolean argument of the call is true.
struct Condition {
  std::string_view argument;
  std::string_view if_true;
};

struct Conditions {
  std::array<Condition, Arguments::kMaxCount> all;  // unused places are empty

  // Null if there is none for the argument.
  constexpr const Condition* find(std::string_view argument) const {
    const auto* const found = std::ranges::find(all, argument, &Condition::argument);
    return found == all.end() ? nullptr : found;
  }
};

// A statement on an argument of a call: it is "given", it is a tensor that is "nonempty" or has
// "inexact" numbers (floating-point or complex ones), or it has this value. It does not hold for an
// overload without the argument.
struct ArgumentTest {
  std::string_view argument;
  std::string_view value;
};

// Statements that have to hold all; unused places are empty.
struct ArgumentTests {
  std::array<ArgumentTest, 2> all;

  constexpr bool areEmpty() const { return all.front().argument.empty(); }
};

// What CUDA's kernel of an operator refuses: calls for which `if_all` holds and `unless_all` does
// not.
struct Refusal {
  std::string_view name;  // as CUDA's texts call the kernel
  DtypeSet dtypes = 0;    // those that it has
  int capability = 0;     // the lowest compute capability, times 10, that has the kernel
  ArgumentTests if_all = {};
  ArgumentTests unless_all = {};
};

// The entries of a fact, sorted by name.
template <typename Value, size_t Count>
struct Table {
  NameKind kind;
  std::array<Entry<Value>, Count> entries;

  // The value of an operator's entry, null if it has none. The name, such as "aten::add.out", has
  // the namespace; without the overload, it is that of the default one. Operators outside of ATen
  // have no entries.
  constexpr const Value* find(std::string_view operator_name) const {
    const std::string_view name = nameIn(kind, operator_name);
    const auto found = std::ranges::lower_bound(entries, name, {}, &Entry<Value>::name);
    return found != entries.end() && found->name == name ? &found->value : nullptr;
  }

  constexpr bool contains(std::string_view operator_name) const {
    return find(operator_name) != nullptr;
  }
};

}  // namespace facts

}  // namespace c10::openreg
