// Works of scripts/compare_peers as Lockstep does them: single operations, and networks.
#pragma once

#include <concepts>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../serve.h"
#include "lockstep/lockstep.h"

namespace peers {

using namespace lockstep;

using Tensors = std::vector<Tensor>;

// What a call computes, ready to be called: the work's arguments are read before anything is timed.
struct Call {
  std::function<void(std::int64_t times)> repeat;
  std::function<Tensors()> once;
};

inline void append(Tensors& to, const Tensor& tensor) { to.push_back(tensor); }
inline void append(Tensors& to, const ValuesAndIndices& both) { to.push_back(both.values); }  // equal ones may swap

// Of a function without arguments that returns a Tensor or ValuesAndIndices.
template <class F>
Call forward_of(F f) {
  return {.repeat =
              [f](std::int64_t times) {
                for (std::int64_t i = 0; i < times; ++i) f();
              },
          .once =
              [f] {
                Tensors results;
                append(results, f());
                return results;
              }};
}

// Forward and backward with the gradient that `inputs` ends with; results are the output and the gradients.
template <class F>
Call backward_of(F f, const Tensors& inputs) {
  if constexpr (std::same_as<std::invoke_result_t<F&>, Tensor>) {
    const auto run = [f, gradient = inputs.back()] {
      Tensor output = f();
      output.backward(gradient);
      return output;
    };
    const auto forget = [inputs] {
      for (Tensor input : inputs) input.zero_grad();
    };
    return {.repeat =
                [run, forget](std::int64_t times) {
                  for (std::int64_t i = 0; i < times; ++i) run(), forget();
                },
            .once =
                [run, forget, inputs] {
                  Tensors results{run().detach()};
                  for (const Tensor& input : inputs)
                    if (input.requires_grad()) results.push_back(input.grad());
                  forget();
                  return results;
                }};
  } else {
    throw Unsupported("has no backward here");
  }
}

// The arguments of a work that is being prepared.
struct Arguments {
  const Json& args;
  const Tensors& x;  // the inputs
  bool backward;     // together with it

  std::int64_t integer(const char* name, std::int64_t otherwise = 0) const { return args.value(name, otherwise); }
  double number(const char* name, double otherwise = 0) const { return args.value(name, otherwise); }
  Dims dims(const char* name) const {
    const auto values = args.at(name).get<std::vector<std::int64_t>>();
    return Dims(std::span<const std::int64_t>(values));
  }
  Size2 size(const char* name, int otherwise) const { return args.value(name, otherwise); }

  template <class F>
  Call operator()(F f) const {
    return backward ? backward_of(std::move(f), x) : forward_of(std::move(f));
  }
};

using Operation = Call (*)(const Arguments& make);
using Operations = std::map<std::string, Operation>;

// By subject.
Operations element_operations();
Operations shape_operations();
Operations reductions();
Operations layer_operations();

// The ways in which a network does the work. Writes what others need into `file`.
Ways network(const Json& work, const std::string& file);

DType dtype_named(const std::string& name);
Tensor made(const Json& input, Device device);
// That computing again gives the same bits, and finite elements: otherwise throws Error.
void check_results(const Tensors& results, const Tensors& again);

}  // namespace peers
