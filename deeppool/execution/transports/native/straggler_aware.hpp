// One rank of an exact all-reduce that sums while it waits: collectives/partial/straggler_aware.py, explained there.
#pragma once
#include <optional>

#include "participant.hpp"

namespace deeppool {

class StragglerAware : public Participant {
 public:
  StragglerAware(int32_t rank, Rule rule, bool latest, Type type, size_t elements)
      : Participant(rank, rule, latest, type, elements, {}) {
    auto chunks = static_cast<size_t>(rule.ranks) - 1;
    for (size_t chunk = 0; chunk <= chunks; ++chunk) bounds_.push_back(chunk * elements / chunks * size_of(type));
  }

  size_t bytes_of(int64_t chunk) const override {
    if (chunk < 0 || chunk >= rule_.ranks - 1) return kNoChunk;
    return bounds_[static_cast<size_t>(chunk) + 1] - bounds_[static_cast<size_t>(chunk)];
  }

  double fires_at() override { return kNever; }

  void advance(double now) override {
    while (!closed) {
      name_straggler();
      auto heard = heard_.find(completed);
      if (heard != heard_.end()) {
        for (int64_t straggler : heard->second)
          if (straggler >= 0 && straggler < rule_.ranks) know(static_cast<int32_t>(straggler));
        heard_.erase(heard);
      }
      if (!arrived_ || owners_.empty()) return;
      if (!active_) {
        activate();
        scatter();
      }
      if (!perform_chunks()) return;
      complete(now);
    }
  }

 protected:
  void arrive(double now) override {
    arrived_ = true;
    int32_t coordinator = coordinator_of(completed);
    if (coordinator == rank_) arrivals_[completed][rank_] = now;
    else outbox.push_back({coordinator, {Kind::arrival, completed}});
    advance(now);
  }

  void open() override {
    Participant::open();
    named_ = false;
    owners_.clear();
    order_.clear();
    chunk_.reset();
    sums_.clear();
  }

  void complete(double now) override {
    Participant::complete(now);
    // Others still wait for a rank that has finished: it arrives by itself.
    if (finished && !closed && !arrived_) arrive(now);
  }

 private:
  // Names the last rank to all, where this rank is the one that counts arrivals.
  void name_straggler() {
    if (named_ || coordinator_of(completed) != rank_) return;
    const auto& arrivals = arrivals_[completed];
    if (arrivals.size() + 1 < static_cast<size_t>(rule_.ranks)) return;
    named_ = true;
    int32_t late = 0;
    double last = -kNever;
    for (int32_t rank = 0; rank < rule_.ranks; ++rank) {
      auto found = arrivals.find(rank);
      double time = found == arrivals.end() ? kNever : found->second;
      if (time > last) late = rank, last = time;
    }
    heard_[completed].push_back(late);
    for (int32_t rank = 0; rank < rule_.ranks; ++rank)
      if (rank != rank_) outbox.push_back({rank, {Kind::activation, completed, late}});
  }

  // All but the straggler own a chunk, to which its own part is added last.
  void know(int32_t straggler) {
    owners_.clear();
    order_.clear();
    for (int32_t rank = 0; rank < rule_.ranks; ++rank)
      if (rank != straggler) owners_.push_back(rank);
    for (int32_t owner : owners_)
      if (owner != rank_) order_.push_back(owner);
    if (straggler != rank_) order_.push_back(straggler);
  }

  // Sends each owner its chunk of this rank's contribution.
  void scatter() {
    for (size_t chunk = 0; chunk < owners_.size(); ++chunk) {
      Contribution part{held_.counts, held_.finished, nullptr};
      if (held_.total) {
        const char* whole = held_.total->data();
        part.total = std::make_shared<std::vector<char>>(whole + bounds_[chunk], whole + bounds_[chunk + 1]);
      }
      if (owners_[chunk] == rank_) chunk_ = std::move(part);
      else outbox.push_back({owners_[chunk], {Kind::data, completed, static_cast<int64_t>(chunk), std::move(part)}});
    }
  }

  // Adds what has arrived to this rank's chunk, then collects all chunks; returns whether all are there.
  bool perform_chunks() {
    auto& data = data_[completed];
    if (chunk_) {
      for (; !order_.empty() && !data[order_.front()].empty(); order_.pop_front())
        *chunk_ = sum(*chunk_, take(data[order_.front()]));
      if (!order_.empty()) return false;
      auto own = std::find(owners_.begin(), owners_.end(), rank_) - owners_.begin();
      for (int32_t rank = 0; rank < rule_.ranks; ++rank)
        if (rank != rank_) outbox.push_back({rank, {Kind::data, completed, own, *chunk_}});
      sums_[rank_] = std::move(*chunk_);
      chunk_.reset();
    }
    // What an owner sends after its part of this rank's chunk is the sum of its own.
    for (int32_t owner : owners_)
      if (!sums_.count(owner) && !data[owner].empty()) sums_[owner] = take(data[owner]);
    if (sums_.size() < owners_.size()) return false;
    held_ = joined();
    return true;
  }

  // The whole sum; null where no rank contributed.
  Contribution joined() {
    Contribution whole = sums_[owners_.front()];
    if (!whole.total) return whole;
    whole.total = std::make_shared<std::vector<char>>(bounds_.back());
    for (size_t chunk = 0; chunk < owners_.size(); ++chunk) {
      const Bytes& part = sums_[owners_[chunk]].total;
      size_t bytes = bytes_of(static_cast<int64_t>(chunk));
      if (part) std::copy_n(part->data(), std::min(part->size(), bytes), whole.total->data() + bounds_[chunk]);
    }
    return whole;
  }

  std::vector<size_t> bounds_;  // bytes before each chunk, and of all
  bool named_ = false;
  std::vector<int32_t> owners_;  // of the chunks, in their order; empty: the straggler is not known yet
  std::deque<int32_t> order_;    // ranks whose part of this rank's chunk is to be added
  std::optional<Contribution> chunk_;
  std::map<int32_t, Contribution> sums_;  // of chunks, by owner
};

}  // namespace deeppool
