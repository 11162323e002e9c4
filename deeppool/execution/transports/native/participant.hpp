// One rank of a partial all-reduce between hosts: deeppool/collectives/partial/participant.py, which explains it, in C++.
#pragma once
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "firing.hpp"

namespace deeppool {

using Numbers = std::vector<int64_t>;
using Bytes = std::shared_ptr<std::vector<char>>;  // null: no gradient

enum class Type : int32_t { float32 = 0, float64 = 1, int64 = 2 };
constexpr size_t kNoChunk = std::numeric_limits<size_t>::max();

enum class Kind : uint8_t { arrival = 0, activation = 1, data = 2, closes = 3, unknown = 4 };

inline size_t size_of(Type type) { return type == Type::float32 ? 4 : 8; }

template <typename T>
void add(const char* left, const char* right, char* sum, size_t elements) {
  auto a = reinterpret_cast<const T*>(left), b = reinterpret_cast<const T*>(right);
  auto c = reinterpret_cast<T*>(sum);
  for (size_t i = 0; i < elements; ++i) c[i] = a[i] + b[i];
}

// Leaves both as they are, as they may still have to be sent.
inline Bytes plus(const Bytes& left, const Bytes& right, Type type) {
  if (!left || !right) return left ? left : right;
  auto sum = std::make_shared<std::vector<char>>(left->size());
  size_t elements = std::min(left->size(), right->size()) / size_of(type);
  auto adder = type == Type::float32 ? add<float> : type == Type::float64 ? add<double> : add<int64_t>;
  adder(left->data(), right->data(), sum->data(), elements);
  return sum;
}

struct Contribution {
  Numbers counts, finished;
  Bytes total;
};

struct Message {
  Kind kind;
  int64_t number;
  int64_t dimension = 0;
  Contribution contribution = {};
};

struct Result {
  int64_t number;
  Numbers counts;
  Bytes total;
};

struct Step {
  enum class What : int32_t { send = 0, receive = 1, reduce = 2 } what;
  int32_t peer;
};

class Participant {
 public:
  Participant(int32_t rank, Rule rule, bool latest, Type type, size_t elements, std::vector<Step> steps)
      : rank_(rank), rule_(rule), latest_(latest), type_(type), bytes_(elements * size_of(type)),
        steps_(std::move(steps)), taken_(rule.ranks), gone_(rule.ranks) {
    Participant::open();
  }
  virtual ~Participant() = default;

  std::vector<std::pair<int32_t, Message>> outbox;
  std::deque<Result> unread;
  int64_t completed = 0, applied = 0, pending_count = 0;
  Bytes pending;
  bool finished = false, closed = false;

  void submit(Bytes gradient, double now) {
    add(std::move(gradient), 1);
    if (unread.empty()) arrive(now);
  }

  void add(Bytes gradients, int64_t count) {
    pending = plus(pending, gradients, type_);
    pending_count += count;
  }

  void finish(double now) {
    finished = true;
    arrive(now);
  }

  void receive(int32_t source, Message message, double now) {
    if (message.number < completed || closed) return;
    if (message.kind == Kind::data) data_[message.number][source].push_back(std::move(message.contribution));
    else if (message.kind == Kind::activation) heard_[message.number].push_back(message.dimension);
    else arrivals_[message.number][source] = now;
    advance(now);
  }

  // Bytes of the data of a message; kNoChunk: no message has that dimension.
  virtual size_t bytes_of(int64_t) const { return bytes_; }

  bool accepted() const { return !pending && taken_[rank_] <= applied && !own_count_; }

  virtual double fires_at() {
    if (active_ || closed) return kNever;
    if (synchronous_) return arrived_ || finished ? -kNever : kNever;
    return rule_.fires_at(completed, arrivals_[completed]);
  }

  virtual void advance(double now) {
    while (!closed) {
      if (!active_ && fires_at() <= now) {
        activate();
        if (!synchronous_) forward(-1);
      }
      auto heard = heard_.find(completed);
      if (heard != heard_.end()) {
        activate();
        for (int64_t dimension : heard->second) forward(dimension);
        heard_.erase(heard);
      }
      if (!active_ || !perform()) return;
      complete(now);
    }
  }

 protected:
  virtual void open() {
    active_ = arrived_ = false;
    own_count_ = 0;
    done_ = 0;
    sent_.clear();
    bool anybody_gone = std::any_of(gone_.begin(), gone_.end(), [](int64_t gone) { return gone; });
    synchronous_ = anybody_gone || rule_.is_synchronous(completed, taken_);
  }

  virtual void arrive(double now) {
    arrived_ = true;
    int32_t coordinator = coordinator_of(completed);
    if (coordinator == rank_) arrivals_[completed][rank_] = now;
    else if (!synchronous_ && (rule_.mode != Mode::majority || rule_.grace > 0))
      outbox.push_back({coordinator, {Kind::arrival, completed}});
    advance(now);
  }

  int32_t coordinator_of(int64_t number) const {
    if (rule_.mode == Mode::majority) return rule_.initiator(number);
    return rule_.mode == Mode::solo && !(rule_.grace > 0) ? rank_ : static_cast<int32_t>(number % rule_.ranks);
  }

  void activate() {
    if (active_) return;
    active_ = true;
    held_ = {Numbers(rule_.ranks), Numbers(rule_.ranks), pending};
    held_.counts[rank_] = own_count_ = pending_count;
    held_.finished[rank_] = finished;
    pending = nullptr;
    pending_count = 0;
  }

  Contribution sum(const Contribution& left, const Contribution& right) const {
    Contribution found{left.counts, left.finished, plus(left.total, right.total, type_)};
    for (int32_t rank = 0; rank < rule_.ranks; ++rank) {
      found.counts[rank] += right.counts[rank];
      found.finished[rank] += right.finished[rank];
    }
    return found;
  }

  static Contribution take(std::deque<Contribution>& waiting) {
    Contribution first = std::move(waiting.front());
    waiting.pop_front();
    return first;
  }

  void forward(int64_t dimension) {
    for (int64_t above = dimension + 1; (int64_t{1} << above) < rule_.ranks; ++above)
      if (sent_.insert(above).second) {
        auto destination = static_cast<int32_t>((rank_ + (int64_t{1} << above)) % rule_.ranks);
        outbox.push_back({destination, {Kind::activation, completed, above}});
      }
  }

  bool perform() {
    auto& data = data_[completed];
    for (; done_ < steps_.size(); ++done_) {
      const Step& step = steps_[done_];
      if (step.what == Step::What::send) {
        outbox.push_back({step.peer, {Kind::data, completed, 0, held_}});
        continue;
      }
      auto& waiting = data[step.peer];
      if (waiting.empty()) return false;
      Contribution arrived = take(waiting);
      held_ = step.what == Step::What::receive ? std::move(arrived) : sum(held_, arrived);
    }
    return true;
  }

  virtual void complete(double now) {
    if (latest_ && !finished) unread.clear();
    unread.push_back({completed, held_.counts, held_.total});
    gone_ = held_.finished;
    closed = true;
    for (int32_t rank = 0; rank < rule_.ranks; ++rank) {
      if (held_.counts[rank] || gone_[rank]) taken_[rank] = completed + 1;
      closed = closed && gone_[rank];
    }
    data_.erase(completed);
    arrivals_.erase(completed);
    ++completed;
    open();
    if (finished && !gone_[rank_]) arrive(now);
  }

  int32_t rank_;
  Rule rule_;
  bool latest_;
  Type type_;
  size_t bytes_;
  std::vector<Step> steps_;
  Numbers taken_, gone_;
  bool active_, arrived_, synchronous_;
  int64_t own_count_;
  size_t done_;
  Contribution held_;
  std::set<int64_t> sent_;
  std::map<int64_t, std::map<int32_t, std::deque<Contribution>>> data_;
  std::map<int64_t, std::vector<int64_t>> heard_;
  std::map<int64_t, std::map<int32_t, double>> arrivals_;
};

}  // namespace deeppool
