#include "lockstep/tensor/nn/parameter.h"

#include <algorithm>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/autograd/substitution.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/read_gate.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {

Parameter::Parameter(const Tensor& value, bool requires_grad)
    : body_(std::make_shared<ParameterBody>(value, false, requires_grad)) {}

Buffer::Buffer(const Tensor& value, bool requires_grad)
    : Parameter(std::make_shared<ParameterBody>(value, true, requires_grad)) {}

Parameter Parameter::uninitialized(const Shape& shape, DType dtype) {
  return Parameter(std::make_shared<ParameterBody>(shape, dtype));
}

namespace {
ParameterBody& checked(const std::shared_ptr<ParameterBody>& body) {
  LOCKSTEP_CHECK(body != nullptr,
                 "[parameter] expected a parameter, got an absent one (never set, or its module was moved from)");
  return *body;
}
ParameterBody& initialised(const std::shared_ptr<ParameterBody>& body) {
  LOCKSTEP_CHECK(checked(body).home.defined(), "[parameter] expected elements, but ", body->describe(),
                 " is uninitialised");
  return *body;
}
}  // namespace

const std::string& Parameter::name() const { return checked(body_).name; }
const Shape& Parameter::shape() const { return checked(body_).shape; }
DType Parameter::dtype() const { return checked(body_).dtype; }
Device Parameter::device() const { return initialised(body_).home.device(); }
Tensor Parameter::tensor() const { return initialised(body_).home; }

Tensor Parameter::on(Device device) const {
  if (const Substitution* substitution = thread_context().substitution) [[unlikely]]
    if (const Tensor* tensor = substitution->find(body_.get())) return tensor->to(device);
  return checked(body_).on(device);
}

SparseGradient Parameter::sparse_grad() const { return tensor().sparse_grad(); }
void Parameter::set_sparse_grad(const SparseGradient& grad) const { tensor().set_sparse_grad(grad); }

bool Parameter::requires_grad() const {
  const ParameterBody& body = checked(body_);
  return body.home.defined() && body.home.requires_grad();
}

void Parameter::set_requires_grad(bool wanted) const {
  ParameterBody& body = initialised(body_);
  if (!wanted) {
    body.home.set_edge({});
  } else if (body.leaf) {
    body.home.set_edge({body.leaf, 0});
  } else {
    body.home.set_requires_grad(true);
    body.set_leaf(body.home.edge().node);
  }
}

namespace {
// The elements that a parameter without any is to have.
Tensor first_elements(const ParameterBody& body, const Tensor& value) {
  Tensor fresh = value.to(body.placed.value_or(value.device())).to(body.dtype).clone();
  if (body.format && value.rank() == 4) fresh = fresh.to(*body.format);
  if (is_floating(body.dtype)) fresh.set_requires_grad(true);
  return fresh;
}

// Of a parameter without elements `value` becomes them.
void assign_one(ParameterBody& body, const Tensor& value) {
  if (body.home.defined()) {
    body.home.copy_(value);
    return;
  }
  body.home = value;
  if (value.requires_grad()) body.set_leaf(value.edge().node);
}
}  // namespace

void Parameter::assign(const Tensor& value) const {
  ParameterBody& body = checked(body_);
  LOCKSTEP_CHECK(value.shape() == body.shape, "[assign] expected a value for ", body.describe(), ", got ",
                 value.describe());
  if (body.gate() && Reading::holds(**body.gate())) {
    const NoGrad no_grad;
    assign_one(body, body.home.defined() ? value.detach() : first_elements(body, value.detach()));
  } else {
    const std::pair<Parameter, Tensor> assignment(*this, value);
    detail::assign_all("assign", {&assignment, 1});
  }
}

void detail::assign_all(const char* op, std::span<const std::pair<Parameter, Tensor>> assignments) {
  const NoGrad no_grad;
  std::vector<ParameterBody*> bodies;
  std::vector<Tensor> values;  // where they come from, so that what is left is a copy
  std::vector<Device> devices;
  for (const auto& [parameter, value] : assignments) {
    ParameterBody& body = *parameter.body();
    const bool first = !body.home.defined();
    bodies.push_back(&body);
    values.push_back(first ? first_elements(body, value.detach())
                           : value.detach().to(body.dtype).contiguous(body.home.memory_format()));
    devices.push_back(first ? values.back().device() : body.home.device());
  }
  if (bodies.empty()) return;
  const Writing writing(op, bodies, devices, Deadline::after(kDefaultTimeout));
  for (std::size_t i = 0; i < bodies.size(); ++i) assign_one(*bodies[i], values[i]);
}

// ---- SubstituteScope

SubstituteScope::SubstituteScope(const std::vector<Parameter>& parameters, const std::vector<Tensor>& tensors)
    : previous_(thread_context().substitution) {
  LOCKSTEP_CHECK(parameters.size() == tensors.size(), "[substitute] expected one tensor for each of ",
                 parameters.size(), " parameters, got ", tensors.size());
  substitution_ = std::make_unique<Substitution>(previous_);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    LOCKSTEP_CHECK(parameters[i].shape() == tensors[i].shape(), "[substitute] expected a tensor for ",
                   parameters[i].body()->describe(), ", got ", tensors[i].describe());
    substitution_->add(parameters[i].body(), tensors[i]);
  }
  thread_context().substitution = substitution_.get();
}

SubstituteScope::~SubstituteScope() { thread_context().substitution = previous_; }

}  // namespace lockstep
